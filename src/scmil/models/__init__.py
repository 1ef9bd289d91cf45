"""Models: aggregators, Fig. 1 as a module, files, other packages' modules, bags of any size, tile
scores, cost.
"""
