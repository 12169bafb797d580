-- The version of this library: that of the Python package it came with.
return { VERSION = "0.1.0" }
