{{/* The image of all containers. */}}
{{- define "headgate.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* What the names of workloads begin with. ServiceAccounts, roles and policies keep theirs, which the policies and Azure's federated
credential name; the label app.kubernetes.io/name keeps its value, by which `headgate status` finds the agents. */}}
{{- define "headgate.fullname" -}}
{{- $name := "headgate" -}}
{{- if .Values.fullnameOverride -}}
{{- $name = .Values.fullnameOverride -}}
{{- else if .Values.nameOverride -}}
{{- $name = ternary .Release.Name (printf "%s-%s" .Release.Name .Values.nameOverride) (contains .Values.nameOverride .Release.Name) -}}
{{- end -}}
{{ $name | trunc 40 | trimSuffix "-" }}
{{- end -}}

{{/* The workload whose pods lead, as kubectl names it. */}}
{{- define "headgate.leading" -}}
{{- $on := include "headgate.features" . | fromYaml -}}
{{ ternary "deployment" "daemonset" $on.controllers }}/{{ include "headgate.fullname" . }}{{ ternary "-controller" "" $on.controllers }}
{{- end -}}

{{/* Labels of the pods of a component. */}}
{{- define "headgate.podLabels" -}}
app.kubernetes.io/name: headgate
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: headgate
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of the objects of a component. */}}
{{- define "headgate.labels" -}}
{{ include "headgate.podLabels" . }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* true or false: `.value`, or where it is `auto` or empty, `.default`. Helm takes a value away that is null before the schema sees it. */}}
{{- define "headgate.resolve" -}}
{{- if or (kindIs "invalid" .value) (eq (toString .value) "auto") -}}{{ .default }}{{- else -}}{{ .value }}{{- end -}}
{{- end -}}

{{/* What is on, from the profile and the values that override it: every template reads this and not the values. */}}
{{- define "headgate.features" -}}
{{- $values := .Values -}}
{{- /* Refused here, because validate.yaml is rendered after the templates that read their keys. */ -}}
{{- range $section := list "image" "azure" "outOfLoadBalancers" "delayTermination" "evictionNotices" "signals" "connections" "maintenance"
  "notifications" "proxy" "agent" "controller" "serviceAccount" "networkPolicy" "podMonitor" "prometheusRule" "dashboards" "uninstall" -}}
{{- if not (kindIs "map" (get $values $section)) -}}
{{- fail (printf "%s is empty: give it a value, or leave its line out for the default" $section) -}}
{{- end -}}
{{- end -}}
{{- $monitoring := .Capabilities.APIVersions.Has "monitoring.coreos.com/v1/PodMonitor" -}}
{{- $managed := .Capabilities.APIVersions.Has "azmonitoring.coreos.com/v1/PodMonitor" -}}
{{- $azure := ne $values.profile "healthz" -}}
{{- $controllers := and (or $azure $values.maintenance.enabled false) (not $values.azure.leaderOnNodes) -}}
{{- $protects := and $azure $controllers -}}
{{- $waits := or $values.maintenance.enabled (eq (toString $values.delayTermination.clusterAutoscaler) "true") (eq (toString $values.delayTermination.karpenter) "true") -}}
{{- $condition := eq (include "headgate.resolve" (dict "value" $values.outOfLoadBalancers.enabled "default" (or $protects $waits))) "true" -}}
{{- $cordon := include "headgate.resolve" (dict "value" $values.signals.cordon "default" (ternary "10s" "false" (eq $values.profile "aks"))) -}}
{{- $delays := and $protects $condition -}}
{{- /* Nothing else would end the wait of that pod. Agents know the mode. */ -}}
{{- $holds := and $delays (eq (dig "adminState" "mode" "Enforce" ($values.settings | default dict)) "Enforce") -}}
{{- $monitor := include "headgate.resolve" (dict "value" $values.podMonitor.enabled "default" (and $azure (or $monitoring $managed))) -}}
{{- $groups := list -}}
{{- if eq $monitor "true" -}}
{{- if or $monitoring (not $managed) }}{{- $groups = append $groups "monitoring.coreos.com" }}{{- end -}}
{{- if $managed }}{{- $groups = append $groups "azmonitoring.coreos.com" }}{{- end -}}
{{- end -}}
{{- $rule := and $azure (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1/PrometheusRule") -}}
{{- $identity := $values.azure.workloadIdentity | default "auto" -}}
{{- if eq $identity "auto" }}{{- $identity = ternary "none" "token" (empty $values.azure.clientId) }}{{- end -}}
{{- $secret := $values.azure.existingSecret -}}
{{- if and (not $secret) (include "headgate.azureJson" .) }}{{- $secret = printf "%s-azure" (include "headgate.fullname" .) }}{{- end -}}
azure: {{ $azure }}
controllers: {{ $controllers }}
identity: {{ ternary $identity "none" $azure }}
secret: {{ ternary $secret "" $azure | quote }}
configSecret: {{ ternary $values.azure.configSecret "" $azure | quote }}
condition: {{ ternary (ternary "leader" "probes" $azure) "none" $condition }}
clusterAutoscaler: {{ include "headgate.resolve" (dict "value" $values.delayTermination.clusterAutoscaler "default" $delays) }}
karpenter: {{ include "headgate.resolve" (dict "value" $values.delayTermination.karpenter "default" $holds) }}
evictionNotices: {{ include "headgate.resolve" (dict "value" $values.evictionNotices.enabled "default" $azure) }}
connections: {{ include "headgate.resolve" (dict "value" $values.connections.enabled "default" $azure) }}
kubeletShutdown: {{ include "headgate.resolve" (dict "value" $values.signals.kubeletShutdown "default" $azure) }}
cordon: {{ ternary "" $cordon (eq $cordon "false") | quote }}
managedPrometheus: {{ $managed }}
podMonitors: {{ toJson $groups }}
prometheusRule: {{ include "headgate.resolve" (dict "value" $values.prometheusRule.enabled "default" $rule) }}
{{- end -}}

{{/* The names in maintenance.automatic of the settings, which may replace the value's, as JSON. */}}
{{- define "headgate.causes" -}}
{{- $names := list -}}
{{- range include "headgate.settings" . | fromYaml | dig "maintenance" "automatic" list -}}
{{- if kindIs "map" . }}{{- $names = append $names .cause }}{{- else }}{{- $names = append $names . }}{{- end -}}
{{- end -}}
{{- toJson $names -}}
{{- end -}}

{{/* azure.json from the values; nothing without any. With the webhook the identity is in the pod's environment. */}}
{{- define "headgate.azureJson" -}}
{{- $azure := .Values.azure -}}
{{- $json := dict -}}
{{- range $key, $value := dict "tenantId" $azure.tenantId "subscriptionId" $azure.subscriptionId "resourceGroup" $azure.resourceGroup -}}
{{- if $value }}{{- $_ := set $json $key $value }}{{- end -}}
{{- end -}}
{{- if and $azure.clientId (ne $azure.workloadIdentity "webhook") }}{{- $_ := set $json "aadClientId" $azure.clientId }}{{- end -}}
{{- $json = mergeOverwrite $json (deepCopy ($azure.config | default dict)) -}}
{{- if $json }}{{ mergeOverwrite (dict "cloud" $azure.cloud) $json | toPrettyJson }}{{- end -}}
{{- end -}}

{{/* settings.yaml: what the features need, and the user's settings, which win. To the user's list of signals the features' are added. */}}
{{- define "headgate.settings" -}}
{{- $on := include "headgate.features" . | fromYaml -}}
{{- $settings := dict "apiVersion" "config.headgate.dev/v1alpha1" "kind" "HeadgateConfiguration" -}}
{{- if $on.evictionNotices }}{{- $_ := set $settings "evictionNotices" (list "ScheduledEvents") }}{{- end -}}
{{- if $on.connections }}{{- $_ := set $settings "connections" (dict "count" true) }}{{- end -}}
{{- if eq $on.condition "probes" -}}
{{- $_ := set $settings "outOfLoadBalancers" (dict "source" "FailedProbes" "failedProbes" (int .Values.outOfLoadBalancers.probes)) -}}
{{- else if eq $on.condition "leader" -}}
{{- $_ := set $settings "outOfLoadBalancers" (dict "source" "AdminState") -}}
{{- end -}}
{{- if ne .Values.serviceHealthChecks "Disabled" }}{{- $_ := set $settings "serviceHealthChecks" .Values.serviceHealthChecks }}{{- end -}}
{{- $azure := dict -}}
{{- with $on.configSecret }}{{- $_ := set $azure "configSecret" (printf "kube-system/%s" .) }}{{- end -}}
{{- with ternary .Values.azure.clusterName "" $on.azure }}{{- $_ := set $azure "clusterName" . }}{{- end -}}
{{- if $azure }}{{- $_ := set $settings "azure" $azure }}{{- end -}}
{{- if $on.clusterAutoscaler }}{{- $_ := set $settings "delayTermination" (dict "clusterAutoscaler" "2m") }}{{- end -}}
{{- if .Values.maintenance.enabled }}{{- $_ := set $settings "maintenance" (dict "enabled" true) }}{{- end -}}
{{- if and .Values.maintenance.enabled .Values.maintenance.automatic }}
{{- $_ := set $settings.maintenance "automatic" .Values.maintenance.automatic -}}
{{- end -}}
{{- if .Values.notifications.secretName }}{{- $_ := set $settings "notifications" (dict "urlFile" "/etc/headgate-webhook/url") }}{{- end -}}
{{- $settings = mergeOverwrite $settings (deepCopy (.Values.settings | default dict)) -}}
{{- $signals := $settings.signals | default dict -}}
{{- $extra := $signals.extra | default list -}}
{{- $named := $signals.disabled | default list -}}
{{- range $extra }}{{- if kindIs "map" . }}{{- $named = append $named (.signal | default "") }}{{- end }}{{- end -}}
{{- if and $on.kubeletShutdown (not (has "kubelet-shutdown" $named)) -}}
{{- $extra = append $extra (dict "signal" "kubelet-shutdown" "for" (list "health" "adminState")) -}}
{{- end -}}
{{- if and $on.cordon (not (has "cordon" $named)) -}}
{{- $extra = append $extra (dict "signal" "cordon" "after" $on.cordon "for" (list "adminState")) -}}
{{- end -}}
{{- if $extra }}{{- $_ := set $signals "extra" $extra }}{{- end -}}
{{- if $signals }}{{- $_ := set $settings "signals" $signals }}{{- end -}}
{{- toYaml $settings -}}
{{- end -}}

{{/* The port of `.address`, or `.default` where it is empty or has none. */}}
{{- define "headgate.port" -}}
{{- .address | default "" | regexFind "^([^:]*|\\[.*\\]):[0-9]+$" | regexFind "[0-9]+$" | default .default -}}
{{- end -}}

{{/* The port of /metrics. */}}
{{- define "headgate.metricsPort" -}}
{{- include "headgate.port" (dict "address" (.Values.settings | default dict).metricsBindAddress "default" "10457") -}}
{{- end -}}

{{/* The name of the settings' ConfigMap has a hash of its content: a pod never reads settings of another version. */}}
{{- define "headgate.settingsName" -}}
{{ include "headgate.fullname" . }}-settings-{{ include "headgate.settings" . | sha256sum | trunc 10 }}
{{- end -}}

{{/* What differs between the pods of `.role` (agent or controller): their values, and the credential of those that may lead. */}}
{{- define "headgate.pod" -}}
{{- $on := include "headgate.features" .root | fromYaml -}}
{{- $mayLead := and $on.azure (or (eq .role "controller") (not $on.controllers)) -}}
mayLead: {{ $mayLead }}
secret: {{ ternary $on.secret "" $mayLead | quote }}
identity: {{ ternary $on.identity "none" $mayLead }}
{{- end -}}

{{/* The nodes of a pod of a hook: those of the pods with these values, beside which it may run. */}}
{{- define "headgate.hookNodes" -}}
nodeSelector:
  kubernetes.io/os: linux
  {{- with .nodeSelector }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with dig "affinity" "nodeAffinity" "" . }}
affinity:
  nodeAffinity:
    {{- toYaml . | nindent 4 }}
{{- end }}
{{- end -}}

{{/* Annotations that roll the pods when a file that they read at the start changes. */}}
{{- define "headgate.checksums" -}}
{{- $pod := include "headgate.pod" . | fromYaml -}}
{{- if and $pod.secret (not .root.Values.azure.existingSecret) }}
checksum/azure: {{ include "headgate.azureJson" .root | sha256sum | quote }}
{{- end }}
{{- end -}}

{{/* Environment of the agents and the controllers. */}}
{{- define "headgate.env" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: MALLOC_ARENA_MAX
  value: "2"
{{- /* The memory of a document of several MiB goes back to the machine at once, which saves a leader a third of its own. */}}
- name: MALLOC_MMAP_THRESHOLD_
  value: "131072"
{{- if eq (include "headgate.pod" . | fromYaml).identity "token" }}
- name: AZURE_FEDERATED_TOKEN_FILE
  value: /var/run/secrets/azure/token
{{- end }}
{{- $proxy := .root.Values.proxy }}
{{- range $name, $value := dict "HTTPS_PROXY" $proxy.https "HTTP_PROXY" $proxy.http "NO_PROXY" $proxy.exclude }}
{{- if $value }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
{{- with .values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The probes ask the process over its Unix socket. */}}
{{- define "headgate.probes" -}}
startupProbe:
  exec:
    command: [/headgate, probe, livez]
  periodSeconds: 1
  timeoutSeconds: 3
  failureThreshold: 60
readinessProbe:
  exec:
    command: [/headgate, probe, readyz]
  periodSeconds: 5
  timeoutSeconds: 3
livenessProbe:
  exec:
    command: [/headgate, probe, livez]
  periodSeconds: 20
  timeoutSeconds: 5
  failureThreshold: 3
{{- end -}}

{{- define "headgate.volumeMounts" -}}
- name: settings
  mountPath: /etc/headgate
  readOnly: true
- name: state
  mountPath: /var/lib/headgate
{{- if eq (include "headgate.pod" . | fromYaml).identity "token" }}
- name: azure-token
  mountPath: /var/run/secrets/azure
  readOnly: true
{{- end }}
{{- if .root.Values.notifications.secretName }}
- name: webhook
  mountPath: /etc/headgate-webhook
  readOnly: true
{{- end }}
{{- with .values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "headgate.volumes" -}}
{{- $pod := include "headgate.pod" . | fromYaml -}}
- name: settings
{{- if $pod.secret }}
  projected:
    sources:
      - configMap:
          name: {{ include "headgate.settingsName" .root }}
      - secret:
          name: {{ $pod.secret }}
          items:
            - key: azure.json
              path: azure.json
              mode: 288 # 0440
{{- else }}
  configMap:
    name: {{ include "headgate.settingsName" .root }}
{{- end }}
# The remembered state, which survives restarts of the container, and the probe socket.
- name: state
  emptyDir:
    sizeLimit: 4Mi
{{- if eq $pod.identity "token" }}
- name: azure-token
  projected:
    sources:
      - serviceAccountToken:
          audience: api://AzureADTokenExchange
          expirationSeconds: 3600
          path: token
{{- end }}
{{- with .root.Values.notifications.secretName }}
# Optional, so that a Secret that is made later keeps no pod from its node.
- name: webhook
  secret:
    secretName: {{ . }}
    optional: true
{{- end }}
{{- with .values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
