"""Reading run directories and comparing them."""
