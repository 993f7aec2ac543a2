{{/* The operator's settings as environment variables: settings.reconcile.retrySeconds is CLOTHO_RECONCILE_RETRY_SECONDS. */}}
{{- define "clotho.environment" -}}
{{- range $group, $knobs := .Values.settings }}
{{- range $knob, $value := $knobs }}
- name: {{ printf "CLOTHO_%s_%s" $group (snakecase $knob) | upper }}
  value: {{ ternary $value (toJson $value) (kindIs "string" $value) | quote }}
{{- end }}
{{- end }}
- {name: CLOTHO_LEASE_NAME, value: {{ include "clotho.fullname" . | quote }}}
- {name: CLOTHO_WATCH_NAMESPACES, value: {{ join "," .Values.runs.namespaces | quote }}}
- {name: CLOTHO_NETWORK_CLUSTER_DOMAIN, value: {{ .Values.runs.clusterDomain | quote }}}
- {name: CLOTHO_NETWORK_TEST_NAMESPACES, value: {{ join "," .Values.runs.testNamespaces | quote }}}
- {name: CLOTHO_NETWORK_PRIVATE_NETWORKS, value: {{ join "," .Values.runs.privateNetworks | quote }}}
{{- with .Values.runs.proxy }}
- {name: CLOTHO_NETWORK_PROXY_URL, value: {{ .url | quote }}}
- {name: CLOTHO_NETWORK_NO_PROXY, value: {{ join "," .noProxy | quote }}}
- {name: CLOTHO_NETWORK_CA_CONFIG_MAP, value: {{ .caConfigMapName | quote }}}
{{- end }}
{{- if .Values.notifications.secretName }}
- {name: CLOTHO_NOTIFICATIONS_URL_FILE, value: /etc/clotho/notifications/url}
{{- end }}
- {name: CLOTHO_IMAGES_API_SERVER, value: {{ include "clotho.image" (list . "api-server" "apiServer") | quote }}}
- {name: CLOTHO_IMAGES_TRAINER, value: {{ include "clotho.image" (list . "trainer" "trainer") | quote }}}
- {name: CLOTHO_IMAGES_ENVIRONMENT, value: {{ include "clotho.image" (list . "environment" "environment") | quote }}}
- {name: CLOTHO_IMAGES_PULL_POLICY, value: {{ .Values.images.pullPolicy | quote }}}
- {name: CLOTHO_IMAGES_PULL_SECRETS, value: {{ join "," .Values.images.pullSecrets | quote }}}
{{- end -}}
