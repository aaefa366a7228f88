"""The channels of an exchange: numbered frames, credits, and the router that sends on them."""
