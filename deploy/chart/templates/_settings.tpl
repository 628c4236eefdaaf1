{{/* Files of settings; a change of their text is what restarts a pod. */}}

{{- define "hedgerow.key" -}}
{{ regexMatch "^[A-Za-z0-9_-]+$" . | ternary . (toJson .) }}
{{- end -}}

{{/* A table as TOML: `at` is its name, empty for the settings of the file itself; JSON's values are TOML's. */}}
{{- define "hedgerow.toml" -}}
{{- $at := .at -}}
{{- range $key, $value := .of -}}
{{- if not (kindIs "map" $value) }}
{{ include "hedgerow.key" $key }} = {{ $value | toJson }}
{{- end -}}
{{- end -}}
{{- range $key, $value := .of -}}
{{- if kindIs "map" $value }}
{{- $table := include "hedgerow.key" $key }}
{{- with $at }}{{ $table = printf "%s.%s" . $table }}{{ end }}

[{{ $table }}]
{{- include "hedgerow.toml" (dict "at" $table "of" $value) }}
{{- end -}}
{{- end -}}
{{- end -}}

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
{{- include "hedgerow.toml" (dict "at" "" "of" (merge (dict "evaluation" $c.evaluation) $c.settings)) }}
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
{{- $data := dict "table" $s.data.table }}
{{- if $s.data.query }}
{{- $_ := set $data "query" $s.data.query }}
{{- else }}
{{- $_ := set $data "path" (default (printf "/var/lib/tables/%s" $s.data.path) $s.data.url) }}
{{- end }}
{{- include "hedgerow.toml" (dict "at" "" "of" (mergeOverwrite (deepCopy $s.settings) (dict "data" $data "policy" $s.policy))) }}
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
{{- with $s.crypto.hsm }}
{{- if ne (not .keyUri) (not .pinSecret) }}
{{- fail "silo.crypto.hsm: keyUri and pinSecret belong together" }}
{{- end }}
{{- if and .keyUri $s.crypto.sealingSecret }}
{{- fail "silo.crypto: expected one of hsm.keyUri and sealingSecret, received both" }}
{{- end }}
{{- with .keyUri }}
key_uri = {{ printf "%s&pin-source=file:/etc/hedgerow/hsm/pin" . | toJson }}
{{- end }}
{{- end }}
workers = {{ $s.crypto.workers }}
log_json = true
log_level = {{ $s.logLevel | toJson }}
{{- end -}}
