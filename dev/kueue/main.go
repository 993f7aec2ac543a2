// kueue runs Kueue's own controllers and scheduler as a process of this machine, for tests. It is put together as Kueue's
// cmd/kueue is, without what needs certificates or a pod: webhooks, the visibility server, integrations of other jobs.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	configapi "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	qcache "sigs.k8s.io/kueue/pkg/cache/queue"
	schdcache "sigs.k8s.io/kueue/pkg/cache/scheduler"
	"sigs.k8s.io/kueue/pkg/config"
	"sigs.k8s.io/kueue/pkg/constants"
	"sigs.k8s.io/kueue/pkg/controller/core"
	"sigs.k8s.io/kueue/pkg/controller/core/indexer"
	"sigs.k8s.io/kueue/pkg/metrics"
	"sigs.k8s.io/kueue/pkg/scheduler"
	preemptexpectations "sigs.k8s.io/kueue/pkg/scheduler/preemption/expectations"
)

func main() {
	file := flag.String("config", "", "a Kueue Configuration")
	flag.Parse()
	ctrl.SetLogger(zap.New())
	if err := run(ctrl.SetupSignalHandler(), *file); err != nil {
		fmt.Fprintln(os.Stderr, "kueue:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, file string) error {
	manager, settings, err := newManager(file)
	if err != nil {
		return err
	}
	metrics.Register()
	if err := indexer.Setup(ctx, manager.GetFieldIndexer()); err != nil {
		return err
	}
	if err := addKueue(ctx, manager, settings); err != nil {
		return err
	}
	if err := manager.AddHealthzCheck("healthz", healthz.Ping); err != nil {
		return err
	}
	return manager.Start(ctx)
}

func newManager(file string) (ctrl.Manager, *configapi.Configuration, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, kueue.AddToScheme, configapi.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, nil, err
		}
	}
	options, settings, err := config.Load(scheme, file)
	if err != nil {
		return nil, nil, err
	}
	if err := config.Validate(&settings, scheme).ToAggregate(); err != nil {
		return nil, nil, err
	}
	options.Metrics.BindAddress = "0"
	manager, err := ctrl.NewManager(ctrl.GetConfigOrDie(), options)
	return manager, &settings, err
}

func addKueue(ctx context.Context, manager ctrl.Manager, settings *configapi.Configuration) error {
	requeuer, expectations := qcache.NewRequeuer(), preemptexpectations.New()
	if err := manager.Add(requeuer); err != nil {
		return err
	}
	cache := schdcache.New(manager.GetClient())
	queues := qcache.NewManager(manager.GetClient(), cache, requeuer, qcache.WithPreemptionExpectations(expectations))
	go queues.CleanUpOnContext(ctx)
	go cache.CleanUpOnContext(ctx)
	options := core.SetupControllersOpts{PreemptionExpectations: expectations}
	if failed, err := core.SetupControllers(manager, queues, cache, settings, options); err != nil {
		return fmt.Errorf("controller %s: %w", failed, err)
	}
	return manager.Add(scheduler.New(queues, cache, manager.GetClient(), manager.GetEventRecorder(constants.AdmissionName),
		scheduler.WithPreemptionExpectations(expectations)))
}
