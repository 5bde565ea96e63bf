"""How the ranks of one attempt come together and stay so, trusting nobody who does not know its
secret."""
