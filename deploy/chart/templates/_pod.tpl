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
{{ $image.repository }}/{{ .component }}:{{ default .root.Chart.AppVersion $image.tag }}
{{- end -}}

{{/* Pod fields that every pod of the chart has. */}}
{{- define "hedgerow.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "hedgerow.container" -}}
image: {{ default (include "hedgerow.image" .) .image }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
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

{{- define "hedgerow.metricsIngress" -}}
- from:
    - namespaceSelector:
        matchLabels:
          kubernetes.io/metadata.name: {{ .Values.networkPolicy.monitoringNamespace }}
  ports:
    - {port: metrics, protocol: TCP}
{{- end -}}
