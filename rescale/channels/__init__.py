"""The channels of an exchange: frames, credits, and the buffer of a sender."""
