"""The machines of a Ray cluster build the kernels of a manifest, without a disk that they share.
  python3 ray_build.py kernels.txt sm_80,sm_90a 16 kernels.fjb
A shard whose machine goes away is built again by another. All machines need flashjit, of one version, and NVRTC."""

import os
import subprocess
import sys
import tempfile

import ray


@ray.remote(num_cpus=4, max_retries=3)
def build(manifest, targets, number, count):
    with tempfile.TemporaryDirectory() as folder:
        names = [os.path.join(folder, name) for name in ("kernels.txt", "shard.fjb")]
        with open(names[0], "wb") as file:
            file.write(manifest)
        done = subprocess.run(["flashjit", "build", names[0], "--arch", targets, "--shard", f"{number}/{count}", "--out", names[1]],
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"shard {number}/{count}: {done.stderr}")
        with open(names[1], "rb") as file:
            return file.read()


def main(manifest, targets, count, out):
    ray.init()
    with open(manifest, "rb") as file:
        text = file.read()
    shards = ray.get([build.remote(text, targets, number, int(count)) for number in range(1, int(count) + 1)])
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, f"{number}.fjb") for number in range(1, len(shards) + 1)]
        for path, shard in zip(paths, shards):
            with open(path, "wb") as file:
                file.write(shard)
        subprocess.run(["flashjit", "bundle", "merge", *paths, "--manifest", manifest, "--arch", targets, "--out", out], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
