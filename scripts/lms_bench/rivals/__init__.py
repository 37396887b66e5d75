"""Other ways to train a model that is larger than the device, each as a change of a Training."""
