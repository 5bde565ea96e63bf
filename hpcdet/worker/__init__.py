"""The supervisor inside an allocation: takes trials, runs each as a step, turns the crank."""
