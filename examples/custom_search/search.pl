#!/usr/bin/perl
# Successive halving in a page of Perl: one line of JSON in, one line of JSON out.
# Trials start together; at each report the worse half of what has come that far stops.
use strict;
use warnings;
use JSON::PP;

my $json = JSON::PP->new->canonical;
$| = 1;
while ( my $line = <STDIN> ) {
    my $in     = $json->decode($line);
    my $search = $in->{search};
    my $state  = $in->{state} // { open => {}, seen => {}, created => 0 };
    my $event  = $in->{event};
    my @actions;
    my $start_another = sub {
        return if $state->{created} >= $search->{max_trials};
        $state->{open}{ ++$state->{created} } = 1;
        push @actions, { kind => 'create' };    # number, sample, seed and length by default
    };

    if ( $event->{kind} eq 'start' ) {
        $start_another->() for 1 .. $search->{max_concurrent_trials};
    }
    elsif ( $event->{kind} eq 'report' ) {
        my $value = $event->{metrics}{ $search->{metric} };
        my ($at) = values %{ $event->{length} };
        my $seen = $state->{seen}{$at} //= [];
        push @$seen, $value if defined $value && $value =~ /^-?[\d.]+(?:e-?\d+)?$/i;
        my $better = grep { $_ < $value } @$seen;
        push @actions,
            { kind => 'stop', trial => $event->{trial}, why => "rank $better of " . @$seen }
            if @$seen > 1 && $better >= @$seen / 2;
    }
    elsif ( $event->{kind} eq 'segment_end' ) {
        delete $state->{open}{ $event->{trial} };
        $start_another->();
        push @actions, { kind => 'shutdown' } if !%{ $state->{open} };
    }
    print $json->encode( { state => $state, actions => \@actions } ), "\n";
}
