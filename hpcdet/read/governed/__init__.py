"""What is known of trials under a policy: what layers learned from, checks, and costs."""
