"""Inference streams: the inline client, mailboxes for policy workers elsewhere, and rows as bytes."""
