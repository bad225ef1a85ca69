"""The messages, one module per pair of processes that exchange them; `net.wire` frames them."""
