"""How the ranks of an attempt meet: each proves that it knows the attempt's secret."""
