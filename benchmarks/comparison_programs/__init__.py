"""The programs of benchmarks.comparison: one application with each limiter, as its documentation shows it.

The lines above the mark are counted. They are the whole program: one route, five requests a minute by address,
counted on Redis. The routes below the mark are for the probes.
"""
