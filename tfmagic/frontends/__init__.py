"""The ways in for people: notebook, command line, doctor, test helpers. Nothing below imports them."""
