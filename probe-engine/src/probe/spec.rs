//! What a user asks to be probed.
