"""Where one request's time goes: lengths, fits, the verdict, and the studies beside it."""
