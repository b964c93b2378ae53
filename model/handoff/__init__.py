"""A prefill and a decode engine with the transfers between them, as one system."""
