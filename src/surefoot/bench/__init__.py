"""Measures a pair: plain decoding against each drafter, interleaved, on questions of several kinds."""
