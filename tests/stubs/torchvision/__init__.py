"""A stand-in for torchvision: what examples ask of it, with small data of noise."""

from torchvision import datasets, transforms

__all__ = ["datasets", "transforms"]
