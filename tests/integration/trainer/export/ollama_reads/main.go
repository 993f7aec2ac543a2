// What Ollama itself reads in a Modelfile of ours: its parser, its templates and its search for tool calls.
package main

import (
	"encoding/json"
	"os"
	"strings"

	"github.com/ollama/ollama/api"
	"github.com/ollama/ollama/parser"
	"github.com/ollama/ollama/template"
	"github.com/ollama/ollama/tools"
)

type job struct {
	Modelfile string
	Messages  []api.Message
	Tools     api.Tools
	Answer    string
}

type reading struct {
	System string
	Stops  []string
	Prompt string
	Calls  []api.ToolCallFunction
}

func read(work job) (result reading, err error) {
	file, err := parser.ParseFile(strings.NewReader(work.Modelfile))
	if err != nil {
		return result, err
	}
	written := &template.Template{}
	for _, command := range file.Commands {
		switch command.Name {
		case "template":
			if written, err = template.Parse(command.Args); err != nil {
				return result, err
			}
		case "system":
			result.System = command.Args
		case "stop":
			result.Stops = append(result.Stops, command.Args)
		}
	}
	messages := work.Messages
	if result.System != "" && messages[0].Role != "system" { // as its server does
		messages = append([]api.Message{{Role: "system", Content: result.System}}, messages...)
	}
	var prompt strings.Builder
	if err = written.Execute(&prompt, template.Values{Messages: messages, Tools: work.Tools}); err != nil {
		return result, err
	}
	result.Prompt = prompt.String()
	calls, _ := tools.NewParser(written.Template, work.Tools).Add(work.Answer)
	for _, call := range calls {
		result.Calls = append(result.Calls, call.Function)
	}
	return result, nil
}

func main() {
	var jobs []job
	if err := json.NewDecoder(os.Stdin).Decode(&jobs); err != nil {
		panic(err)
	}
	readings := []reading{}
	for _, work := range jobs {
		result, err := read(work)
		if err != nil {
			panic(err)
		}
		readings = append(readings, result)
	}
	if err := json.NewEncoder(os.Stdout).Encode(readings); err != nil {
		panic(err)
	}
}
