{{- define "clotho.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "clotho.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "clotho.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "clotho.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "clotho.selectorLabels" -}}
app.kubernetes.io/name: {{ include "clotho.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "clotho.labels" -}}
{{ include "clotho.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: clotho
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "clotho.webSelectorLabels" -}}
app.kubernetes.io/name: {{ include "clotho.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: web
{{- end -}}

{{- define "clotho.webLabels" -}}
{{ include "clotho.labels" . | replace "app.kubernetes.io/component: operator" "app.kubernetes.io/component: web" }}
{{- end -}}

{{- define "clotho.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "clotho.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{/* The reference of one of the four images; takes (list . "api-server" "apiServer"). The most specific value counts. */}}
{{- define "clotho.image" -}}
{{- $root := index . 0 -}}
{{- $images := $root.Values.images -}}
{{- $repository := printf "%s/%s" $images.registry (index . 1) -}}
{{- $digest := index ($images.digests | default dict) (index . 2) -}}
{{- if index $images (index . 2) -}}
{{- index $images (index . 2) -}}
{{- else if and $digest (not $images.tag) -}}
{{- printf "%s@%s" $repository $digest -}}
{{- else -}}
{{- printf "%s:%s" $repository ($images.tag | default $root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* Plural names of the kinds in our CRDs, as a JSON list. */}}
{{- define "clotho.plurals" -}}
{{- $plurals := list -}}
{{- range $path, $_ := .Files.Glob "files/crds/*.yaml" -}}
{{- $plurals = append $plurals ($.Files.Get $path | fromYaml).spec.names.plural -}}
{{- end -}}
{{- toJson $plurals -}}
{{- end -}}
