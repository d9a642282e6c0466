{{/* The image of all containers. */}}
{{- define "headgate.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* Labels of a component. */}}
{{- define "headgate.labels" -}}
app.kubernetes.io/name: headgate
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
{{- end -}}

{{/* A mode of the values as text: YAML reads a bare `off` as false. */}}
{{- define "headgate.mode" -}}
{{- if kindIs "bool" . -}}off{{- else -}}{{ . }}{{- end -}}
{{- end -}}

{{/* settings.yaml: what the features need, and the user's settings, which win. */}}
{{- define "headgate.settings" -}}
{{- $settings := dict "apiVersion" "config.headgate.dev/v1alpha1" "kind" "HeadgateConfiguration" -}}
{{- $node := dict -}}
{{- if .Values.spot.enabled }}{{- $_ := set $node "scheduledEvents" true }}{{- end -}}
{{- if .Values.connections.enabled }}{{- $_ := set $node "countConnections" true }}{{- end -}}
{{- $serviceHealth := include "headgate.mode" .Values.serviceHealth -}}
{{- if ne $serviceHealth "off" }}{{- $_ := set $node "serviceHealth" $serviceHealth }}{{- end -}}
{{- if $node }}{{- $_ := set $settings "node" $node }}{{- end -}}
{{- if and .Values.azure.enabled .Values.azure.configSecret -}}
{{- $_ := set $settings "azure" (dict "configSecret" (printf "kube-system/%s" .Values.azure.configSecret)) -}}
{{- end -}}
{{- if .Values.marker.enabled }}{{- $_ := set $settings "marker" (dict "mode" "adminState") }}{{- end -}}
{{- if .Values.holdDeletion.clusterAutoscaler }}
{{- $_ := set $settings "holdDeletion" (dict "clusterAutoscaler" "candidates") -}}
{{- end -}}
{{- if .Values.maintenance.enabled }}{{- $_ := set $settings "maintenance" (dict "enabled" true) }}{{- end -}}
{{- if and .Values.maintenance.enabled .Values.maintenance.automatic }}
{{- $_ := set $settings.maintenance "automatic" .Values.maintenance.automatic -}}
{{- end -}}
{{- toYaml (mergeOverwrite $settings (deepCopy .Values.settings)) -}}
{{- end -}}

{{/* The port of /metrics, from settings.metricsBindAddress. */}}
{{- define "headgate.metricsPort" -}}
{{- regexFind "[0-9]+$" (.Values.settings.metricsBindAddress | default "[::]:10457") -}}
{{- end -}}

{{/* Whether the leader is one of the controllers' pods: wherever something may lead, unless the agents are to. */}}
{{- define "headgate.controllers" -}}
{{- if and (or .Values.azure.enabled .Values.maintenance.enabled) (not .Values.azure.leaderOnNodes) -}}true{{- end -}}
{{- end -}}

{{/* The name of the settings' ConfigMap has a hash of its content: a pod never reads settings of another version. */}}
{{- define "headgate.settingsName" -}}
headgate-settings-{{ include "headgate.settings" . | sha256sum | trunc 10 }}
{{- end -}}

{{/* Whether the pods of `.role` (agent or controller) may lead. */}}
{{- define "headgate.mayLead" -}}
{{- if and .root.Values.azure.enabled (or (eq .role "controller") .root.Values.azure.leaderOnNodes) -}}true{{- end -}}
{{- end -}}

{{/* Annotations that roll the pods when a file that they read at the start changes. */}}
{{- define "headgate.checksums" -}}
{{- if and (include "headgate.mayLead" .) .root.Values.azure.secretName .root.Values.azure.config }}
checksum/azure: {{ .root.Values.azure.config | toJson | sha256sum | quote }}
{{- end }}
{{- end -}}

{{/* Security context of all pods. */}}
{{- define "headgate.podSecurityContext" -}}
runAsNonRoot: true
# Two processes share a port only under the same user.
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "headgate.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
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
{{- if and (include "headgate.mayLead" .) (eq (include "headgate.mode" .root.Values.azure.workloadIdentity.mode) "token") }}
- name: AZURE_FEDERATED_TOKEN_FILE
  value: /var/run/secrets/azure/token
{{- end }}
{{- with .extra }}
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
{{- if and (include "headgate.mayLead" .) (eq (include "headgate.mode" .root.Values.azure.workloadIdentity.mode) "token") }}
- name: azure-token
  mountPath: /var/run/secrets/azure
  readOnly: true
{{- end }}
{{- end -}}

{{- define "headgate.volumes" -}}
- name: settings
{{- if and (include "headgate.mayLead" .) .root.Values.azure.secretName }}
  projected:
    sources:
      - configMap:
          name: {{ include "headgate.settingsName" .root }}
      - secret:
          name: {{ .root.Values.azure.secretName }}
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
{{- if and (include "headgate.mayLead" .) (eq (include "headgate.mode" .root.Values.azure.workloadIdentity.mode) "token") }}
- name: azure-token
  projected:
    sources:
      - serviceAccountToken:
          audience: api://AzureADTokenExchange
          expirationSeconds: 3600
          path: token
{{- end }}
{{- end -}}

{{/*
The objects of a file in files/, a copy of one in manifests/ (`make docs` copies them, a test compares them): in the release's
namespace, but for Roles, whose namespaces are fixed, and with the labels of `component` if there is one. `rules` are added to
the role `rulesOf` (KIND/NAME); `subject` replaces the name of each subject; `annotations` are set; a DaemonSet gets the
image of the values, and `tolerations` besides its own.
*/}}
{{- define "headgate.objects" -}}
{{- $root := .root -}}
{{- $text := $root.Files.Get (printf "files/%s" .file) -}}
{{- if not $text }}{{- fail (printf "the chart has no files/%s" .file) }}{{- end -}}
{{- range $document := regexSplit "(?m)^---$" $text -1 -}}
{{- $object := fromYaml $document -}}
{{- if hasKey $object "Error" }}{{- fail (printf "files/%s: %s" $.file $object.Error) }}{{- end -}}
{{- if hasKey $object "kind" -}}
{{- $metadata := $object.metadata -}}
{{- if and (hasKey $metadata "namespace") (not (has $object.kind (list "Role" "RoleBinding"))) -}}
{{- $_ := set $metadata "namespace" $root.Release.Namespace -}}
{{- end -}}
{{- with $.component -}}
{{- $labels := include "headgate.labels" (dict "root" $root "component" .) | fromYaml -}}
{{- $_ := set $metadata "labels" (mergeOverwrite (default dict $metadata.labels) $labels) -}}
{{- end -}}
{{- with $.labels }}{{- $_ := set $metadata "labels" (mergeOverwrite (default dict $metadata.labels) (deepCopy .)) -}}{{- end -}}
{{- with $.annotations }}{{- $_ := set $metadata "annotations" (mergeOverwrite (default dict $metadata.annotations) (deepCopy .)) -}}{{- end -}}
{{- range $subject := default list $object.subjects -}}
{{- $_ := set $subject "namespace" $root.Release.Namespace -}}
{{- with $.subject }}{{- $_ := set $subject "name" . }}{{- end -}}
{{- end -}}
{{- if eq $object.kind "DaemonSet" -}}
{{- $template := $object.spec.template -}}
{{- $_ := set $template.metadata "labels" (deepCopy $metadata.labels) -}}
{{- with $.tolerations }}{{- $_ := set $template.spec "tolerations" (concat $template.spec.tolerations .) }}{{- end -}}
{{- with $root.Values.imagePullSecrets }}{{- $_ := set $template.spec "imagePullSecrets" . }}{{- end -}}
{{- $container := first $template.spec.containers -}}
{{- $_ := set $container "image" (include "headgate.image" $root) -}}
{{- with $root.Values.image.pullPolicy }}{{- $_ := set $container "imagePullPolicy" . }}{{- end -}}
{{- end -}}
{{- if $.ingressFrom }}{{- $_ := set (first $object.spec.ingress) "from" $.ingressFrom }}{{- end -}}
{{- if and $.rules (eq (printf "%s/%s" $object.kind $metadata.name) $.rulesOf) -}}
{{- $_ := set $object "rules" (concat $object.rules $.rules) -}}
{{- end }}
---
{{ toYaml $object }}
{{- end }}
{{- end }}
{{- end -}}
