{{- define "hedgerow.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "hedgerow.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "hedgerow.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "hedgerow.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What selects the pods of a component: never changes, for selectors cannot. */}}
{{- define "hedgerow.selector" -}}
app.kubernetes.io/name: {{ include "hedgerow.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "hedgerow.labels" -}}
{{ include "hedgerow.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: hedgerow
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "hedgerow.image" -}}
{{- $image := .root.Values.image -}}
{{- with $image.registry }}{{ . }}/{{ end -}}
{{ $image.repository }}/{{ .component }}
{{- with get $image.digests .component }}@{{ . }}{{ else }}:{{ default .root.Chart.AppVersion $image.tag }}{{ end }}
{{- end -}}

{{/*
What a pod may be given, as JSON: values of every pod with those of this one (`own`). Of maps and
single values its own win; lists are joined.
*/}}
{{- define "hedgerow.given" -}}
{{- $all := .root.Values -}}
{{- $made := deepCopy (default dict .own) -}}
{{- range $key := list "podAnnotations" "podLabels" "podSecurityContext" "containerSecurityContext" "nodeSelector" "affinity" -}}
{{- $_ := set $made $key (mergeOverwrite (deepCopy (get $all $key)) (default dict (get $made $key))) -}}
{{- end -}}
{{- range $key := list "tolerations" "topologySpreadConstraints" "hostAliases" -}}
{{- $_ := set $made $key (concat (get $all $key) (default list (get $made $key))) -}}
{{- end -}}
{{- $_ := set $made "priorityClassName" (default $all.priorityClassName $made.priorityClassName) -}}
{{- if .root.Capabilities.APIVersions.Has "security.openshift.io/v1" -}}
{{/* OpenShift gives each namespace users and groups of its own, and refuses others. */}}
{{- $_ := set $made "podSecurityContext" (omit $made.podSecurityContext "runAsUser" "runAsGroup" "fsGroup") -}}
{{- end -}}
{{- toJson $made -}}
{{- end -}}

{{/*
A pod's spec: `spec`, as text, with what every pod of the chart has and what values add. The first
container is the process; the values' env, envFrom and mounts are its alone.
*/}}
{{- define "hedgerow.spec" -}}
{{- $root := .root -}}
{{- $spec := fromYaml .spec -}}
{{- $given := include "hedgerow.given" . | fromJson -}}
{{- $account := $root.Values.serviceAccount -}}
{{- $_ := set $spec "automountServiceAccountToken" (and $account.automount (has .component (list "coordinator" "agent"))) -}}
{{- if has .component (list "coordinator" "agent") -}}
{{- with ternary (default (include "hedgerow.fullname" $root) $account.name) $account.name $account.create -}}
{{- $_ := set $spec "serviceAccountName" . -}}
{{- end -}}
{{- end -}}
{{- $_ := set $spec "enableServiceLinks" false -}}
{{- range $root.Values.image.pullSecrets -}}
{{- $_ := set $spec "imagePullSecrets" (append (default list $spec.imagePullSecrets) (dict "name" .)) -}}
{{- end -}}
{{- $_ := set $spec "securityContext" $given.podSecurityContext -}}
{{- range $key := list "serviceAccountName" "priorityClassName" "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "hostAliases" "initContainers" -}}
{{- with get $given $key -}}
{{- $_ := set $spec $key . -}}
{{- end -}}
{{- end -}}
{{- $process := first $spec.containers -}}
{{- range $key, $from := dict "env" "extraEnv" "envFrom" "extraEnvFrom" "volumeMounts" "extraVolumeMounts" -}}
{{- with get $given $from -}}
{{- $_ := set $process $key (concat (default list (get $process $key)) .) -}}
{{- end -}}
{{- end -}}
{{- with $given.extraVolumes -}}
{{- $_ := set $spec "volumes" (concat $spec.volumes .) -}}
{{- end -}}
{{- $_ := set $spec "containers" (concat $spec.containers (default list $given.sidecars)) -}}
{{- range concat $spec.containers (default list $spec.initContainers) -}}
{{- $_ := set . "imagePullPolicy" (default $root.Values.image.pullPolicy .imagePullPolicy) -}}
{{- $_ := set . "securityContext" (mergeOverwrite (deepCopy $given.containerSecurityContext) (default dict .securityContext)) -}}
{{- end -}}
{{- toYaml $spec -}}
{{- end -}}

{{- define "hedgerow.template" -}}
{{- $given := include "hedgerow.given" . | fromJson -}}
metadata:
  labels:
    {{- include "hedgerow.selector" . | nindent 4 }}
    {{- with $given.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- $noted := $given.podAnnotations }}
  {{- with .settings }}
  {{- $noted = merge (dict "checksum/config" (sha256sum .)) $noted }}
  {{- end }}
  {{- with $noted }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- include "hedgerow.spec" . | nindent 2 }}
{{- end -}}

{{/*
Probes of a gRPC server over mTLS: the kubelet's own speaks no TLS. Each run starts a program, which a busy
node delays: what ends a process asks for nothing but its metrics.
*/}}
{{- define "hedgerow.probes" -}}
{{- $probe := printf "[python3, -m, hedgerow.services.process.probe, %q, --identity, /etc/hedgerow/identity]" .address -}}
startupProbe:
  exec:
    command: {{ $probe }}
  periodSeconds: 2
  timeoutSeconds: 10
  failureThreshold: 90
readinessProbe:
  exec:
    command: {{ $probe }}
  periodSeconds: 15
  timeoutSeconds: 10
  failureThreshold: 4
{{ include "hedgerow.liveness" . }}
{{- end -}}

{{- define "hedgerow.liveness" -}}
livenessProbe:
  httpGet: {path: /metrics, port: metrics}
  periodSeconds: 20
  timeoutSeconds: 10
  failureThreshold: 6
{{- end -}}

{{- define "hedgerow.environment" -}}
{{- with . }}
envFrom:
  {{- range . }}
  - secretRef:
      name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "hedgerow.scratch" -}}
- name: scratch
  emptyDir:
    sizeLimit: 1Gi
{{- end -}}

{{- define "hedgerow.identity" -}}
- name: identity
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end -}}

{{- define "hedgerow.claim" -}}
{{- $storage := .storage -}}
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {{ .name }}
  labels:
    {{- include "hedgerow.labels" . | nindent 4 }}
  {{- if $storage.keep }}
  annotations:
    helm.sh/resource-policy: keep
  {{- end }}
spec:
  accessModes: [ReadWriteOnce]
  {{- with $storage.storageClass }}
  storageClassName: {{ . }}
  {{- end }}
  resources:
    requests:
      storage: {{ $storage.size }}
{{- end -}}

{{/* Whether a coordinator keeps anything on a volume: not where database and artefacts are elsewhere. */}}
{{- define "hedgerow.volume" -}}
{{- $c := .Values.coordinator -}}
{{- if or (not $c.databaseSecret) (not (regexMatch "^[a-z0-9+]+://" $c.artefacts)) (hasPrefix "file:" $c.artefacts) (hasPrefix "/" $c.audit) $c.storage.existingClaim }}yes{{ end -}}
{{- end -}}

{{- define "hedgerow.secret" -}}
{{- $given := ternary .root.Values.certificates.cryptoSecret .root.Values.certificates.secret (eq .component "crypto") -}}
{{- default (printf "%s-%s-identity" (include "hedgerow.fullname" .root) .component) $given -}}
{{- end -}}

{{- define "hedgerow.monitored" -}}
{{- if and .Values.monitoring.enabled (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1") }}yes{{ end -}}
{{- end -}}

{{/* Name resolution, which every pod needs. */}}
{{- define "hedgerow.dns" -}}
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
{{- end -}}

{{/* The ports at which coordinators are reached. */}}
{{- define "hedgerow.dialled" -}}
{{- $ports := list "7443" -}}
{{- if eq .Values.role "silo" -}}
{{- $ports = list -}}
{{- range splitList "," .Values.silo.coordinator -}}
{{- $ports = append $ports (splitList ":" . | last) -}}
{{- end -}}
{{- end -}}
{{- range uniq $ports }}
- {port: {{ . }}, protocol: TCP}
{{- end -}}
{{- end -}}

{{- define "hedgerow.metricsIngress" -}}
- from:
    - namespaceSelector:
        matchLabels:
          kubernetes.io/metadata.name: {{ .Values.networkPolicy.monitoringNamespace }}
  ports:
    - {port: metrics, protocol: TCP}
{{- end -}}
