# shellcheck shell=bash
# Functions for a sandbox without agents (`make sandbox ARGS='--no-agents --dir DIR'`) in which the chart is installed: they do what kubelets
# and the controllers of workloads would do with its pods. For bash, with KUBECONFIG and AZURE_JSON as the sandbox prints them, and headgate,
# helm and kubectl on the PATH. docs/dev/lab.md has the commands. Their files are in $PODS_DIR, /tmp/trial-pods by default.

PODS_DIR=${PODS_DIR:-/tmp/trial-pods}
mkdir -p "$PODS_DIR"

kube() { kubectl -n kube-system "$@"; }

# pod NAME NODE WORKLOAD: creates the Pod of the workload's template, gets the token that kubelet would put into it, starts the container's
# arguments with the settings and files of its volumes, and reports the Pod as running once the process is ready.
pod() {
  local name=$1 node=$2 workload=$3 dir=$PODS_DIR/$1 template='{.spec.template' account args labels spec settings
  mkdir -p "$dir/state"
  rm -f "$dir/addresses.json"
  account=$(kube get "$workload" -o jsonpath="$template.spec.serviceAccountName}")
  args=$(kube get "$workload" -o jsonpath="$template.spec.containers[0].args[*]}")
  labels=$(kube get "$workload" -o jsonpath="$template.metadata.labels}")
  spec=$(kube get "$workload" -o jsonpath="$template.spec}")
  kubectl create -f - >/dev/null <<<"{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {\"name\": \"$name\",
    \"namespace\": \"kube-system\", \"labels\": $labels}, \"spec\": {\"nodeName\": \"$node\", ${spec#\{}}" || return
  settings=$(kube get daemonset headgate -o jsonpath="$template.spec.volumes[?(@.name==\"settings\")].configMap.name}")
  kube get configmap "$settings" -o jsonpath='{.data.settings\.yaml}' >"$dir/settings.yaml"
  kube get secret headgate-azure -o jsonpath='{.data.azure\.json}' | base64 -d >"$dir/azure.json"
  cp "$KUBECONFIG" "$dir/kubeconfig"
  kubectl config --kubeconfig "$dir/kubeconfig" set-credentials pod --token \
    "$(kube create token "$account" --bound-object-kind Pod --bound-object-name "$name" --duration 2h)" >/dev/null
  kubectl config --kubeconfig "$dir/kubeconfig" set-context --current --user pod >/dev/null
  # shellcheck disable=SC2086
  headgate ${args//\/etc\/headgate/$dir} --node-name "$node" --kubeconfig "$dir/kubeconfig" --state-dir "$dir/state" \
    --healthz-bind-address 127.0.0.1:0 --metrics-bind-address 127.0.0.1:0 --addresses-file "$dir/addresses.json" 2>"$dir/log" &
  echo $! >"$dir/pid"
  for _ in {1..150}; do
    [ -f "$dir/addresses.json" ] && curl -fsS "http://$(metrics "$name")/readyz" >/dev/null 2>&1 && running "$name" "$node" && return
    sleep 0.2
  done
  echo "$name is not ready: $dir/log" >&2
  return 1
}
running() { # NAME NODE: the status that kubelet writes of a pod that is ready
  local now ip containers
  now=$(date -u +%FT%TZ)
  ip=$(kubectl get node "$2" -o jsonpath='{.status.addresses[0].address}')
  containers=$(kube get pod "$1" -o go-template="{{range \$i, \$c := .spec.containers}}{{if \$i}}, {{end}}{\"name\": \"{{.name}}\",
    \"image\": \"{{.image}}\", \"imageID\": \"\", \"ready\": true, \"started\": true, \"restartCount\": 0,
    \"state\": {\"running\": {\"startedAt\": \"$now\"}}}{{end}}")
  kube patch pod "$1" --subresource=status -p "{\"status\": {\"phase\": \"Running\", \"startTime\": \"$now\", \"hostIP\": \"$ip\",
    \"podIP\": \"$ip\", \"podIPs\": [{\"ip\": \"$ip\"}], \"containerStatuses\": [$containers],
    \"conditions\": [{\"type\": \"Ready\", \"status\": \"True\", \"lastTransitionTime\": \"$now\"}]}}" >/dev/null
}
rollout() { # AGENTS CONTROLLERS: so many pods are ready, as the controllers of DaemonSets and Deployments report it
  local generation
  generation=$(kube get daemonset headgate -o jsonpath='{.metadata.generation}') || return
  kube patch daemonset headgate --subresource=status -p "{\"status\": {\"observedGeneration\": $generation, \"desiredNumberScheduled\": 3,
    \"currentNumberScheduled\": $1, \"updatedNumberScheduled\": $1, \"numberReady\": $1, \"numberAvailable\": $1}}" >/dev/null
  generation=$(kube get deployment headgate-controller -o jsonpath='{.metadata.generation}') || return
  kube patch deployment headgate-controller --subresource=status -p "{\"status\": {\"observedGeneration\": $generation, \"replicas\": $2,
    \"updatedReplicas\": $2, \"readyReplicas\": $2, \"availableReplicas\": $2}}" >/dev/null
}
pods() { # what a rollout does: all pods anew, with the present settings
  kube get daemonset/headgate deployment/headgate-controller >/dev/null || return # install first
  stop_pods
  local node
  for node in node-1 node-2 node-3; do pod "headgate-$node" "$node" daemonset/headgate || return; done
  pod headgate-controller-1 node-1 deployment/headgate-controller || return
  pod headgate-controller-2 node-3 deployment/headgate-controller || return
  rollout 3 2
  sleep 20 # until one of the two leads
}
stop_pods() {
  local file
  for file in "$PODS_DIR"/*/pid; do [ ! -f "$file" ] || { kill "$(cat "$file")"; wait "$(cat "$file")"; rm "$file"; }; done 2>/dev/null
  kube delete pods -l app.kubernetes.io/name=headgate --grace-period=0 --force >/dev/null 2>&1
  rollout 0 0 2>/dev/null || true # they may have been uninstalled
}

metrics() { sed 's/.*"metrics":"\([^"]*\)".*/\1/' "$PODS_DIR/$1/addresses.json"; echo; } # the address of its operations port
agents() { for node in node-1 node-2 node-3; do echo "--statusz $node=http://$(metrics headgate-$node)/statusz"; done; }
status() { # with the settings of the release
  headgate status --config "$PODS_DIR/headgate-controller-1/settings.yaml" --azure-config-file "$AZURE_JSON" $(agents) "$@"
}
uninstall() { # what the Job before the release's deletion needs: its command, the Deployment's rollout, and its state
  local now args
  now=$(date -u +%FT%TZ)
  helm uninstall headgate --namespace kube-system --timeout 5m &
  until args=$(kube get job headgate-uninstall -o jsonpath='{.spec.template.spec.containers[0].args[*]}' 2>/dev/null); do sleep 1; done
  # shellcheck disable=SC2086
  headgate $args &
  local command=$!
  sleep 5 # until it has written the settings
  pods
  wait "$command" || return
  kube patch job headgate-uninstall --subresource=status --patch \
    "{\"status\":{\"startTime\":\"$now\",\"completionTime\":\"$(date -u +%FT%TZ)\",\"succeeded\":1,\"conditions\":[{\"type\":\"SuccessCriteriaMet\",\"status\":\"True\"},{\"type\":\"Complete\",\"status\":\"True\"}]}}"
  stop_pods
  wait
}
