"""The simulated engine of NVIDIA Dynamo / AISimulate, out of the ``ai-dynamo-runtime`` wheel, as an engine under test."""
