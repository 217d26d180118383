#!/bin/bash
# Run main.py on this machine: one process for each of the tasks $tasks.
# Ends with $chief, or when a task fails, with its exit code. PYTHON chooses the interpreter.
# What main.py writes comes into this folder. Its ports are of 127.0.0.1.
cd "$$(dirname "$$0")" || exit 1
if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 501)); then
    echo "run_local.sh needs bash 5.1 or newer, and this is $$BASH_VERSION" >&2
    exit 1
fi
tasks=($tasks)
threads=$$(( $$(nproc) / $computing ))
export TF_NUM_INTRAOP_THREADS=$${TF_NUM_INTRAOP_THREADS:-$$(( threads > 0 ? threads : 1 ))}
export TF_FORCE_GPU_ALLOW_GROWTH=$${TF_FORCE_GPU_ALLOW_GROWTH:-true}

configs=$$("$${PYTHON:-python3}" - "$${tasks[@]}" <<'END'
import json, socket, sys

sockets = [socket.socket() for _ in sys.argv[1:]]
cluster = {}
for name, free in zip(sys.argv[1:], sockets):
    free.bind(("127.0.0.1", 0))
    if not name.startswith("evaluator"):
        cluster.setdefault(name.split("-")[0], []).append(f"127.0.0.1:{free.getsockname()[1]}")
for name in sys.argv[1:]:
    kind, index = name.split("-")
    print(json.dumps({"cluster": cluster, "task": {"type": kind, "index": int(index)}}))
END
) || exit 1
mapfile -t configs <<< "$$configs"

declare -A names
end() { kill "$${!names[@]}" 2> /dev/null; wait; }
trap end EXIT
trap 'exit 130' INT TERM
for n in "$${!tasks[@]}"; do
    TF_CONFIG="$${configs[n]}" "$${PYTHON:-python3}" -u main.py > >(sed -u "s/^/[$${tasks[n]}] /") 2>&1 &
    names[$$!]=$${tasks[n]}
done

for _ in "$${tasks[@]}"; do
    wait -n -p ended "$${!names[@]}"
    code=$$?
    name=$${names[$$ended]}
    unset "names[$$ended]"
    if [ $$code -ne 0 ]; then
        echo "$$name ended with exit code $$code" >&2
        exit $$code
    fi
    if [ "$$name" = $chief ] && $ends_with_chief; then
        exit 0
    fi
done
