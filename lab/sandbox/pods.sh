# shellcheck shell=bash
# Functions for a sandbox without agents (`make sandbox ARGS='--no-agents --dir DIR'`) in which the chart is installed: they do what kubelets
# would do with its pods. For bash, with KUBECONFIG and AZURE_JSON as the sandbox prints them, and headgate, helm and kubectl on the PATH.
# docs/dev/lab.md has the commands. `pod NAME NODE WORKLOAD` creates the Pod object, gets the token that kubelet would put into it, and starts
# the container's arguments with the settings and files of its volumes.

mkdir -p /tmp/trial-pods

pod() {
  local name=$1 node=$2 workload=$3 dir=/tmp/trial-pods/$1 account args settings
  mkdir -p "$dir/state"
  account=$(kubectl -n kube-system get "$workload" -o jsonpath='{.spec.template.spec.serviceAccountName}')
  args=$(kubectl -n kube-system get "$workload" -o jsonpath='{.spec.template.spec.containers[0].args[*]}')
  kubectl -n kube-system get pod "$name" >"$dir/kubectl.log" 2>&1 ||
    kubectl -n kube-system run "$name" --image=headgate \
      --overrides="{\"spec\":{\"nodeName\":\"$node\",\"serviceAccountName\":\"$account\"}}" || return
  settings=$(kubectl -n kube-system get daemonset headgate -o jsonpath='{.spec.template.spec.volumes[?(@.name=="settings")].configMap.name}')
  kubectl -n kube-system get configmap "$settings" -o jsonpath='{.data.settings\.yaml}' >"$dir/settings.yaml"
  kubectl -n kube-system get secret headgate-azure -o jsonpath='{.data.azure\.json}' | base64 -d >"$dir/azure.json"
  cp "$KUBECONFIG" "$dir/kubeconfig"
  kubectl config --kubeconfig "$dir/kubeconfig" set-credentials pod --token \
    "$(kubectl -n kube-system create token "$account" --bound-object-kind Pod --bound-object-name "$name" --duration 2h)" >/dev/null
  kubectl config --kubeconfig "$dir/kubeconfig" set-context --current --user pod >/dev/null
  # shellcheck disable=SC2086
  headgate ${args//\/etc\/headgate/$dir} --node-name "$node" --kubeconfig "$dir/kubeconfig" --state-dir "$dir/state" \
    --healthz-bind-address 127.0.0.1:0 --metrics-bind-address 127.0.0.1:0 --addresses-file "$dir/addresses.json" 2>"$dir/log" &
  echo $! >"$dir/pid"
}
pods() { # what a rollout does: all pods anew, with the present settings
  kubectl -n kube-system get daemonset/headgate deployment/headgate-controller >/dev/null || return # install first
  stop_pods
  for node in node-1 node-2 node-3; do pod "headgate-$node" "$node" daemonset/headgate; done
  pod headgate-controller-1 node-1 deployment/headgate-controller
  pod headgate-controller-2 node-3 deployment/headgate-controller
  sleep 20 # until one of the two leads
}
stop_pods() {
  for file in /tmp/trial-pods/*/pid; do [ ! -f "$file" ] || { kill "$(cat "$file")"; wait "$(cat "$file")"; rm "$file"; }; done 2>/dev/null
}

metrics() { sed 's/.*"metrics":"\([^"]*\)".*/\1/' /tmp/trial-pods/$1/addresses.json; echo; } # the address of its operations port
agents() { for node in node-1 node-2 node-3; do echo "--statusz $node=http://$(metrics headgate-$node)/statusz"; done; }
status() { # with the settings of the release
  headgate status --config /tmp/trial-pods/headgate-controller-1/settings.yaml --azure-config-file "$AZURE_JSON" $(agents) "$@"
}
uninstall() { # what the Job before the release's deletion needs: its command, the Deployment's rollout, and the states of both
  local now args
  now=$(date -u +%FT%TZ)
  helm uninstall headgate --namespace kube-system --timeout 5m &
  until args=$(kubectl -n kube-system get job headgate-uninstall -o jsonpath='{.spec.template.spec.containers[0].args[*]}' 2>/dev/null); do sleep 1; done
  # shellcheck disable=SC2086
  headgate $args &
  local command=$!
  sleep 5 # until it has written the settings
  pods
  kubectl -n kube-system patch deployment headgate-controller --subresource=status --patch \
    "{\"status\":{\"observedGeneration\":$(kubectl -n kube-system get deployment headgate-controller -o jsonpath='{.metadata.generation}'),\"replicas\":2,\"updatedReplicas\":2,\"readyReplicas\":2,\"availableReplicas\":2}}"
  wait "$command" || return
  kubectl -n kube-system patch job headgate-uninstall --subresource=status --patch \
    "{\"status\":{\"startTime\":\"$now\",\"completionTime\":\"$(date -u +%FT%TZ)\",\"succeeded\":1,\"conditions\":[{\"type\":\"SuccessCriteriaMet\",\"status\":\"True\"},{\"type\":\"Complete\",\"status\":\"True\"}]}}"
  stop_pods
  wait
}
