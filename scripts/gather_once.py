"""Once: gathers of LOSSY stores by number of blocks, beside ordered raw rows."""

import json, os, statistics, sys, time, torch

sys.path.insert(0, "scripts")
from bench.uncompressed import registered, copy_rows, fastest_blocks
from bench.timing import queued_ms
import ibp_gnn
from ibp_gnn.codec.values import to_bytes

d = torch.device("cuda", 0)
torch.manual_seed(0)
found = []
for dim in (128, 768):
    n = int(3e9 / 4 / dim)
    raw = torch.empty(n, dim)
    with registered(raw) as address:
        for part in raw.split(1 << 18):
            part.copy_(torch.randn(part.shape, device=d) * 0.1)

        def ordered(ids, count, out):
            places, positions = torch.sort(ids)
            return copy_rows(address, places, out, positions, count)

        for k in (200_000, 800_000) if dim == 128 else (60_000, 200_000):
            out = torch.empty(k, dim, device=d)
            draw = lambda: torch.randint(n, (k,), device=d)
            blocks = fastest_blocks(lambda ids, count: ordered(ids, count, out), draw, (16, 32, 64))
            raw_ms = statistics.median(queued_ms(lambda ids=draw(): ordered(ids, blocks, out)) for _ in range(9))
            print(dim, k, "raw", blocks, f"{raw_ms:.3f} ms, {k * dim * 4 / raw_ms / 1e6:.1f} GB/s", flush=True)
            found.append((dim, k, "raw", blocks, raw_ms))
        for p in ("fp8_e4m3", "fp8_e5m2", "bf16", "fp16"):
            t = time.time()
            s = ibp_gnn.CompressedFeatureStore.build(raw, precision=p, pin=True, progress=False)
            t = time.time() - t
            f = s.codec.form
            print(p, s, f.kind, f.code_bits, f.trim_bits, f"built in {t:.1f} s", flush=True)
            ids = torch.randint(n, (5000,), device=d)
            assert torch.equal(s.gather(ids), s._precision.round(raw[ids.cpu()]).to(d)), p
            assert torch.equal(s.gather(ids), s.gather(ids.cpu()).to(d)), p
            g = s.gather_on(d)
            for k in (200_000, 800_000) if dim == 128 else (60_000, 200_000):
                out = torch.empty(k, dim, device=d)
                for b in (16, 32, 64, 132, 264, 0):
                    ms = statistics.median(
                        queued_ms(
                            lambda ids=torch.randint(n, (k,), device=d): g.gather(
                                ids, to_bytes(out), ordered=True, max_blocks=b
                            )
                        )
                        for _ in range(7)
                    )
                    r = next(x[4] for x in found if x[:3] == (dim, k, "raw"))
                    found.append((dim, k, p, b, ms))
                    print(
                        dim,
                        k,
                        p,
                        b,
                        f"{ms:.3f} ms, {r / ms:.2f}x raw, {k * dim * 4 / ms / 1e6:.0f} GB/s out, {k * s.slot_bytes / ms / 1e6:.1f} GB/s slots",
                        flush=True,
                    )
            s.close()
            del g
json.dump(found, open(os.environ["OUT"] + "/gather_once.json", "w"))
