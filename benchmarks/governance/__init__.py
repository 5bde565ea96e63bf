"""What ``bench_governance`` measures, part by part."""
