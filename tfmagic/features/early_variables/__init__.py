"""Environment variables that a program sets before it imports TensorFlow hold for this import."""
