#!/usr/bin/env python3
"""One run, any number of processes: the same fingerprint and the same checkpoint, byte for byte.

    .ci/ranks.py PROGRAM [--launcher tcp|mpi] [--models …] [--ranks 1,2,3,5,8] [--modes compiled,eager] [--devices …] [--kills 50]

Trains every model with one process, then with several, and compares. Then kills runs at random moments and goes on with another
number of processes, as often as --kills says; of a killed rank the others must say the name. `tcp` starts processes by hand, `mpi` with mpirun.
"""

import argparse
import hashlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODELS = {
    "mlp": "--samples 120 --batch 24",
    "cnn": "--samples 60 --batch 16",
    "resnet": "--samples 60 --batch 16",
    "vit": "--samples 60 --batch 16",
    "gpt": "--samples 60 --batch 16 --grid 16",
    "mamba": "--samples 60 --batch 16 --grid 16",
    "fno1d": "--samples 40 --batch 16 --grid 64",
    "fno2d": "--samples 40 --batch 16 --grid 16",
    "autoencoder": "--samples 60 --batch 16",
}
SHARDS = 8


def port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(program, launcher, ranks, command, devices):
    """The processes of a run, each in a process group of its own."""
    env = dict(os.environ, DITTOGRAD_THREADS="1")
    piped = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    device = lambda rank: ["--device", devices[rank % len(devices)]]
    if ranks == 1:
        return [subprocess.Popen([program, *command, *device(0)], env=env, **piped)]
    if launcher == "mpi":
        line = ["mpirun", "--oversubscribe"] + (["--allow-run-as-root"] if os.geteuid() == 0 else [])
        for rank in range(ranks):
            line += ([":"] if rank else []) + ["-n", "1", program, *command, *device(rank)]
        return [subprocess.Popen(line, env=env, **piped)]
    meet = dict(env, WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port()))
    local = lambda rank: dict(meet, RANK=str(rank), LOCAL_RANK=str(rank))
    return [subprocess.Popen([program, *command, *device(rank)], env=local(rank), **piped) for rank in range(ranks)]


def finish(processes):
    ends = [(p, *p.communicate(timeout=600)) for p in processes]
    for p, out, err in ends:
        if p.returncode != 0:
            sys.exit(f"FAILED {p.args}: {p.returncode}\n{out}\n{err}")
    return ends[0][1].strip().splitlines()[-1]


def kill(processes, chance):
    """Kills all of them, or one, whose number the others must say before they end with code 2."""
    if len(processes) > 1 and chance.random() < 0.5:
        lost = chance.randrange(len(processes))
        processes[lost].kill()
        for rank, p in enumerate(processes):
            _, err = p.communicate(timeout=60)
            is_done = p.returncode == 0 or processes[lost].returncode == 0
            if rank != lost and not is_done and (p.returncode != 2 or f"rank {lost} " not in err):
                sys.exit(f"FAILED rank {lost} of {len(processes)} was killed: rank {rank} ended with {p.returncode}: {err}")
        return
    for p in processes:
        try:
            os.killpg(p.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    for p in processes:
        p.communicate()


def digest(folder):
    return hashlib.blake2b((folder / "checkpoint.safetensors").read_bytes()).hexdigest()[:16]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--launcher", default="tcp", choices=["tcp", "mpi"])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--ranks", default="1,2,3,5,8")
    parser.add_argument("--modes", default="compiled,eager")
    parser.add_argument("--devices", default="cpu", help="one for each rank, repeated: cuda,cpu")
    parser.add_argument("--numerics", default="strict")
    parser.add_argument("--steps", default=4, type=int)
    parser.add_argument("--kills", default=0, type=int)
    parser.add_argument("--seed", default=27, type=int)
    args = parser.parse_args()
    program, ranks = str(Path(args.program).resolve()), [int(n) for n in args.ranks.split(",")]
    devices, chance = args.devices.split(","), random.Random(args.seed)
    with tempfile.TemporaryDirectory() as home:
        home = Path(home)
        for model in args.models.split(","):
            line = f"train {model} {MODELS[model]} --shards {SHARDS} --steps {args.steps} --numerics {args.numerics} --quiet --clip 1"
            want, seen = None, []
            for mode in args.modes.split(","):
                for n in ranks:
                    out = home / f"{model}-{mode}-{n}"
                    command = [*line.split(), "--mode", mode, "--out", str(out)]
                    print_ = finish(start(program, args.launcher, n, command, devices))
                    got = (print_, digest(out))
                    want = want or got
                    if got != want:
                        sys.exit(f"FAILED {model} {mode} on {n} ranks: {got} instead of {want}")
                    seen.append(f"{mode} {n}")
            print(f"{model}: {want[0]}, checkpoint {want[1]}: {', '.join(seen)}", flush=True)
        done, runs = 0, 0
        while done < args.kills:
            runs += 1
            model = chance.choice(["mlp", "cnn", "gpt"])
            line = f"train {model} {MODELS[model]} --shards {SHARDS} --steps 60 --eval-every 3 --quiet --clip 1"
            whole = home / f"whole-{model}"
            if not whole.exists():
                finish(start(program, args.launcher, 1, [*line.split(), "--out", str(whole)], devices))
            out, first, path = home / f"killed-{runs}", True, []
            while True:
                n = chance.choice(ranks)
                fresh = first or not (out / "checkpoint.safetensors").exists()
                command = [*line.split(), "--out", str(out)] if fresh else ["train", "--resume", str(out), "--quiet"]
                processes = start(program, args.launcher, n, command, devices)
                first = False
                moment = chance.uniform(0.05, 2.0 + 0.4 * n)
                end = time.monotonic() + moment
                while time.monotonic() < end and any(p.poll() is None for p in processes):
                    time.sleep(0.01)
                path.append(n)
                if len(path) > 6 or all(p.poll() is not None for p in processes):
                    finish(processes)
                    break
                kill(processes, chance)
                done += 1
            if digest(out) != digest(whole):
                sys.exit(f"FAILED {model}: killed and resumed on {path} ranks, its checkpoint differs")
            print(f"{model}: killed {len(path) - 1} times, on {path} ranks: the checkpoint of an uninterrupted run", flush=True)


if __name__ == "__main__":
    main()
