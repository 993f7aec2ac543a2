// Renders conversations as Ollama does: Go's text/template over System, Messages and Tools.
package main

import (
	"encoding/json"
	"os"
	"strings"
	"text/template"
)

type function struct{ Name, Arguments string }

type call struct{ Function function }

type message struct {
	Role, Content string
	ToolCalls     []call
}

type job struct {
	Template string
	Values   struct {
		System, Prompt string
		Messages       []message
		Tools          []string
	}
}

func main() {
	var jobs []job
	if err := json.NewDecoder(os.Stdin).Decode(&jobs); err != nil {
		panic(err)
	}
	texts := []string{}
	for _, each := range jobs {
		var text strings.Builder
		if err := template.Must(template.New("").Parse(each.Template)).Execute(&text, each.Values); err != nil {
			panic(err)
		}
		texts = append(texts, text.String())
	}
	if err := json.NewEncoder(os.Stdout).Encode(texts); err != nil {
		panic(err)
	}
}
