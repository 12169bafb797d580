"""Parses rulebooks.

    document_tree               a tree of texts, lists and mappings in which every value has its position
    read_yaml, read_json, read_toml (with toml_line_numbers), read_python_values      make it from each format
    fields, problems            check single values; collect all problems of a book
    parse_rule, parse_choice, parse_adaptive, parse_condition      the parts of a rule
    consistency, impossible_conditions             what no field shows alone: names, cycles, contradictions
    attribute_typos             warnings for attributes that look misspelled

load.py puts them together.
"""
