"""The page of `dpacct app`: what it computes, draws and serves."""
