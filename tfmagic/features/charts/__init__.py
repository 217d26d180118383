"""Charts of loss and metrics of `fit`, without a line of the user's."""
