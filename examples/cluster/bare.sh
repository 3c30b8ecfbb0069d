#!/usr/bin/env bash
# A cluster on bare machines that you reach by ssh. On each of them: the same Python environment with runnel[ray], and a shared
# folder for runs. Usage: HEAD=10.0.0.1 NODES="10.0.0.2 10.0.0.3" ./bare.sh
set -euo pipefail

HEAD=${HEAD:?the private address of the head node}
NODES=${NODES:?the private addresses of the other nodes}
ENV=${ENV:-"$HOME/runnel/.venv"}
PORT=6379

# A token that all nodes share: without it, whoever reaches the ports may run code.
export RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(openssl rand -hex 32)
export RAY_AUTH_TOKEN

start() { # start HOST ARGUMENTS...: Ray on one machine; the dashboard stays on the loopback
  local host=$1
  shift
  ssh "$host" RAY_AUTH_MODE=token RAY_AUTH_TOKEN="$RAY_AUTH_TOKEN" "$ENV/bin/ray" start "$@" --disable-usage-stats
}

start "$HEAD" --head --port="$PORT" --node-ip-address="$HEAD" --dashboard-host=127.0.0.1 --labels pool=gpu
for node in $NODES; do
  start "$node" --address="$HEAD:$PORT" --node-ip-address="$node" --labels pool=cpu
done

ssh "$HEAD" RAY_AUTH_MODE=token RAY_AUTH_TOKEN="$RAY_AUTH_TOKEN" "$ENV/bin/runnel" train appo --env CartPole-v1 \
  --launcher ray --cluster.address auto --num-actors 64 --out /shared/runs \
  --cluster.place "'actor-*: 1 core, on cpu, spread'" "'trainer: 4 cores, on gpu'"
