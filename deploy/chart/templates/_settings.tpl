{{/* Files of settings; a change of their text is what restarts a pod. */}}
{{- define "hedgerow.coordinatorToml" -}}
{{- $c := .Values.coordinator -}}
listen = "0.0.0.0:7443"
metrics = "0.0.0.0:9464"
identity = "/etc/hedgerow/identity"
silos = {{ $c.silos | toJson }}
lease_seconds = {{ $c.leaseSeconds }}
{{- if not $c.databaseSecret }}
database = "sqlite:////var/lib/hedgerow/hedgerow.db"
{{- end }}
artefacts = {{ default "/var/lib/hedgerow/artefacts" $c.artefacts | toJson }}
log_json = true
log_level = {{ $c.logLevel | toJson }}
traces = {{ $c.traces | toJson }}
audit = {{ $c.audit | toJson }}

[evaluation]
{{- range $table, $path := $c.evaluation }}
{{ $table | toJson }} = {{ $path | toJson }}
{{- end }}
{{- end -}}

{{- define "hedgerow.agentToml" -}}
{{- $s := .Values.silo -}}
coordinator = {{ $s.coordinator | toJson }}
{{- with $s.serverName }}
server_name = {{ . | toJson }}
{{- end }}
identity = "/etc/hedgerow/identity"
state = "/var/lib/hedgerow"
crypto = "{{ include "hedgerow.fullname" . }}-crypto:7444"
metrics = "0.0.0.0:9466"
threads = {{ $s.threads }}
{{- with $s.memoryLimit }}
memory_limit = {{ . | toJson }}
{{- end }}
{{- with $s.dask }}
dask = {{ . | toJson }}
{{- end }}
log_json = true
log_level = {{ $s.logLevel | toJson }}
traces = {{ $s.traces | toJson }}

[data]
table = {{ $s.data.table | toJson }}
{{- if $s.data.query }}
query = {{ $s.data.query | toJson }}
{{- else if $s.data.url }}
path = {{ $s.data.url | toJson }}
{{- else }}
path = {{ printf "/var/lib/tables/%s" $s.data.path | toJson }}
{{- end }}

[policy]
{{- range $rule, $value := $s.policy }}
{{ $rule }} = {{ $value | toJson }}
{{- end }}
{{- end -}}

{{- define "hedgerow.cryptoToml" -}}
{{- $s := .Values.silo -}}
listen = "0.0.0.0:7444"
metrics = "0.0.0.0:9465"
identity = "/etc/hedgerow/identity"
silo = {{ $s.name | toJson }}
state = "/var/lib/hedgerow/keys"
{{- if $s.crypto.sealingSecret }}
key_file = "/etc/hedgerow/sealing/key"
{{- end }}
workers = {{ $s.crypto.workers }}
log_json = true
log_level = {{ $s.logLevel | toJson }}
{{- end -}}
