"""The supervisor inside an allocation: claims trials, runs each as a step, turns the crank."""
