"""What a task does inside TensorFlow and Keras, mostly around private API: each says what it measured."""
