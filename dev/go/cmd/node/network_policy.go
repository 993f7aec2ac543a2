package main

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/cloudnativelabs/kube-router/v2/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/v2/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/v2/pkg/options"
	"github.com/cloudnativelabs/kube-router/v2/pkg/svcip"
	"github.com/spf13/cobra"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const syncTimeout = time.Minute

// kube-router's NetworkPolicy controller alone: its other controllers bring a BGP speaker along, which takes
// as long to compile as the kubelet.
func newNetworkPolicyCommand() *cobra.Command {
	config := options.NewKubeRouterConfig()
	command := &cobra.Command{
		Use:          "network-policy",
		Short:        "Enforce NetworkPolicies on this node with kube-router's controller",
		SilenceUsage: true,
		RunE: func(command *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(command.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			config.RunRouter, config.RunServiceProxy = false, false // else its health waits for theirs
			return enforce(ctx, config)
		},
	}
	command.SetContext(context.Background())
	config.AddFlags(command.Flags())
	return command
}

// Serves its health while it runs; returns when the context ends.
func enforce(ctx context.Context, config *options.KubeRouterConfig) error {
	access, err := clientcmd.BuildConfigFromFlags("", config.Kubeconfig)
	if err != nil {
		return fmt.Errorf("the kubeconfig cannot be used: %w", err)
	}
	client, err := kubernetes.NewForConfig(access)
	if err != nil {
		return fmt.Errorf("no client for the API server: %w", err)
	}
	health, err := healthcheck.NewHealthController(config)
	if err != nil {
		return fmt.Errorf("no health server: %w", err)
	}
	var running sync.WaitGroup
	defer running.Wait()
	beats := make(chan *healthcheck.ControllerHeartbeat, 10)
	running.Add(1)
	go health.RunServer(ctx.Done(), &running)

	controller, err := newController(ctx, config, client)
	if err != nil {
		return err
	}
	health.SetAlive()
	running.Add(2)
	go health.RunCheck(beats, ctx.Done(), &running)
	go controller.Run(beats, ctx.Done(), &running)
	<-ctx.Done()
	return nil
}

// Its informers are synchronised and report changes to it.
func newController(
	ctx context.Context, config *options.KubeRouterConfig, client kubernetes.Interface,
) (*netpol.NetworkPolicyController, error) {
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	namespaces := factory.Core().V1().Namespaces().Informer()
	policies := factory.Networking().V1().NetworkPolicies().Informer()
	factory.Core().V1().Nodes().Informer()
	factory.Start(ctx.Done())
	syncing, done := context.WithTimeout(ctx, syncTimeout)
	defer done()
	for kind, isSynced := range factory.WaitForCacheSync(syncing.Done()) {
		if !isSynced {
			return nil, fmt.Errorf("the API server has not listed %s within %s", kind, syncTimeout)
		}
	}
	ranges, err := svcip.NewValidator(svcip.Config{
		ClusterIPCIDRs: config.ClusterIPCIDRs,
		EnableIPv4:     config.EnableIPv4,
		EnableIPv6:     config.EnableIPv6,
	})
	if err != nil {
		return nil, fmt.Errorf("--service-cluster-ip-range: %w", err)
	}
	tables, sets, err := netpol.NewIPTablesHandlers(config)
	if err != nil {
		return nil, fmt.Errorf("iptables and ipset cannot be used: %w", err)
	}
	controller, err := netpol.NewNetworkPolicyController(
		client, config, pods, policies, namespaces, &sync.Mutex{}, nil, tables, sets, ranges)
	if err != nil {
		return nil, fmt.Errorf("no NetworkPolicy controller: %w", err)
	}
	_, podsError := pods.AddEventHandler(controller.PodEventHandler)
	_, namespacesError := namespaces.AddEventHandler(controller.NamespaceEventHandler)
	_, policiesError := policies.AddEventHandler(controller.NetworkPolicyEventHandler)
	return controller, errors.Join(podsError, namespacesError, policiesError)
}
