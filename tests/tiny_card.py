"""The card of a network that is small enough to be built in every test."""

TINY_CARD = """
summary = "A tiny network"
builder = "timm"
architecture = "vit_tiny_patch16_224"
parameters = 93840
[arguments]
img_size = 32
embed_dim = 48
depth = 2
num_heads = 2
[input]
tile_px = 64
mpp = [1.0]
resize_px = 32
[output]
width = 48
pool = "cls"
prefix_tokens = 1
[weights]
file = "own.pth"
"""
