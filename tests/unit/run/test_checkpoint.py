

def test_large_files_are_digested_in_pieces_and_every_byte_counts(tmp_path, monkeypatch):
    from runnel.run import checkpoint

    path = tmp_path / "large"
    path.write_bytes(bytes(range(256)) * 40)
    small = checkpoint.digest_of(path)
    monkeypatch.setattr(checkpoint, "PIECE", 4096)
    monkeypatch.setattr(checkpoint, "BLOCK", 1024)
    found = checkpoint.digest_of(path)
    assert found.startswith("pieces-")
    assert found != small
    for place in (0, 4095, 4096, 10239):
        data = bytearray(bytes(range(256)) * 40)
        data[place] ^= 1
        path.write_bytes(data)
        assert checkpoint.digest_of(path) != found
