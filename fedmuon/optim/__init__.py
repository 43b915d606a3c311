"""The polar factor, parameter routing and server optimizers."""
