"""What `bench/load.py` needs: a server that answers by a script."""
