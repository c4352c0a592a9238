"""The command line: arguments in, text or JSON out, one file per command.

Owns: what is printed and how, and exit codes. Refuses to know: how anything is done.
"""
