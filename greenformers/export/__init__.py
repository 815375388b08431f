"""A network for other runtimes: torch.export and ONNX Runtime."""
