"""Reports on recorded traffic.

documents          JSON documents
svg_charts         charts as SVG
html_page          the frame of a page: one file, light and dark, no network
suggestion_page    the report of suggest; replay_page and simulation_page those of the others
"""
