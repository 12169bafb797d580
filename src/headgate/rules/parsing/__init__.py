"""How a rulebook is read.

    document                    a tree of texts, lists and mappings in which every value knows its line
    read_yaml, read_json, read_toml (toml_lines finds the lines), read_python      how each format becomes one
    fields, problems            what is expected of a value; what was found instead, all of it
    load_rule, load_choice, load_condition      the parts of a rule
    consistent, possible        what no part sees by itself: names, circles, conditions that can never hold

load.py puts them together.
"""
